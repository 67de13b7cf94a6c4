from accumlint.changed_lines import parse_diff

DIFF = rb"""diff --git a/a b.py b/a b.py
index 1..2 100644
--- a/a b.py	
+++ b/a b.py	
@@ -3 +3 @@ def f():
-old
+new
@@ -10,2 +10,0 @@
-gone
-gone
@@ -20,0 +19,3 @@
+++ b/looks like a header.py
+@@ -1 +1 @@
+third
diff --git "a/\303\251\".py" "b/\303\251\".py"
--- "a/\303\251\".py"
+++ "b/\303\251\".py"
@@ -0,0 +1,2 @@
+one
+two
\ No newline at end of file
diff --git a/deleted.py b/deleted.py
--- a/deleted.py
+++ /dev/null
@@ -1,2 +0,0 @@
-one
-two
"""


def test_added_and_changed_lines_by_file():
    assert parse_diff(DIFF) == {"a b.py": {3, 19, 20, 21}, 'é".py': {1, 2}}

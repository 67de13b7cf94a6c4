"use strict";
// The page reads well without this: it only filters findings, unfolds what a link leads to, and copies commands.
(function () {
  var filter = document.getElementById("filter");
  if (filter) {
    var findings = Array.from(document.querySelectorAll(".finding"));
    var words = document.getElementById("filter-text");
    var count = document.getElementById("filter-count");
    var texts = findings.map(function (each) { return each.textContent.toLowerCase(); });
    var apply = function () {
      var wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
      var on = Array.from(filter.querySelectorAll("input[type=checkbox]:checked"), function (box) { return box.value; });
      var shown = 0;
      findings.forEach(function (each, index) {
        var keep = on.indexOf(each.dataset.severity) >= 0 && wanted.every(function (word) { return texts[index].indexOf(word) >= 0; });
        each.hidden = !keep;
        shown += keep ? 1 : 0;
      });
      count.textContent = shown === findings.length ? "" : shown + " of " + findings.length + " shown";
    };
    filter.hidden = false;
    filter.addEventListener("input", apply);
  }
  function reveal() {
    var target = null;
    try { target = document.getElementById(decodeURIComponent(location.hash.slice(1))); } catch (error) { return; }
    if (!target) { return; }
    target.hidden = false;
    for (var each = target; each; each = each.parentElement) {
      if (each.tagName === "DETAILS") { each.open = true; }
    }
    target.scrollIntoView();
  }
  window.addEventListener("hashchange", reveal);
  reveal();
  document.querySelectorAll("button[data-copy]").forEach(function (button) {
    if (!navigator.clipboard) { return; }
    button.hidden = false;
    button.addEventListener("click", function () {
      navigator.clipboard.writeText(button.dataset.copy).then(function () {
        button.textContent = "copied";
        setTimeout(function () { button.textContent = "copy"; }, 1500);
      });
    });
  });
  var closed = [];
  // on paper: all but what says "nothing found" and the pages of rules, which accumlint explain prints
  window.addEventListener("beforeprint", function () {
    closed = closed.concat(Array.from(document.querySelectorAll("details:not([open]):not(.quiet):not(.rule)")));
    closed.forEach(function (each) { each.open = true; });
  });
  window.addEventListener("afterprint", function () {
    closed.forEach(function (each) { each.open = false; });
    closed = [];
  });
})();

from accumlint.cli.main import main

raise SystemExit(main())

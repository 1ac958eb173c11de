"""`python -m msctl`."""

import sys

from msctl.app import main

sys.exit(main())

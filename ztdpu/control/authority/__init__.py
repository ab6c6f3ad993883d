"""Control's authorities: keys that sign, which of them are believed, and how one replaces another."""

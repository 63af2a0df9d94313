"""Row codes: the ranks or bit planes by which some layouts replace the values of rows."""

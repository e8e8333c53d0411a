"""The web page of jobs and job managers: plain files of this package, and who serves them."""

"""The web page of jobs and job managers: static files, and the module that serves them."""

"""What carries decisions out: jobs as processes on one machine (``local``)."""

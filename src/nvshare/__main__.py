from nvshare.cli.entry import nvshare

nvshare()

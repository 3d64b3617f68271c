from nvshare.cli.main import main

main()

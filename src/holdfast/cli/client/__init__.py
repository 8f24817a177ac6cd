"""The command line as a client: address, HTTP, waiting, streams of logs."""

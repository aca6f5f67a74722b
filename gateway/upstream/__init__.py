"""The way to the servers: a small HTTP/1.1 client, what it sees pass, and who the servers are."""

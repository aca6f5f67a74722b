"""The operator's page: one static page on the control plane, live by server-sent events.

Theory of operation. The page is files of this package (`static/`), served as they are under a
content security policy that lets nothing in from elsewhere: no build step, no third-party host.
It shows the document of /status and computes nothing of its own but units and percentages, so each
number on it can be looked up there (`tests/page` compares them one by one).

While at least one page is open the document is made and serialised once a second, for all of them
together (`events`). A page that does not read costs one document in its socket and is cut after a
while. The last quarter of an hour is kept as one short row each five seconds (`trend`).
"""

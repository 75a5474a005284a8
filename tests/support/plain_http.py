"""What HTTP clients of tests trust that speak no TLS: nobody.

To load the authorities that `httpx` trusts takes more CPU than a request: 20 ms for each client.
"""

import ssl

PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

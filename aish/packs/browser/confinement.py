"""Flags that let our Chromium connect only through the guarded proxy.

Each flag has a comment with the connections that it prevents. For TCP no flag is relied on alone:
the browser can resolve no names but the proxy's own address, and only the proxy opens connections.
UDP of WebRTC is disabled by a flag and by a preference.
"""

from collections.abc import Mapping
from typing import Final

from aish.core.json import JsonValue

_RULES: Final = "MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"
# Loopback too goes through the proxy. The browser looks up no name and connects to no address but
# the proxy's, whoever asks it: prefetches, TURN over TCP. Datagrams to a number are not held back.
_THROUGH_THE_PROXY: Final = ("--proxy-bypass-list=<-loopback>", f"--host-resolver-rules={_RULES}")

# UDP has no proxy. WebRTC is left with what a proxy carries; without this policy it would send to
# any address that a page names. The `force-` spelling is that of older versions; later ones ignore
# it.
_NO_UDP: Final = (
    "--disable-quic",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
)

# What the browser requests by itself: updates, reports, lists, metrics, sign-in, hints.
_NOTHING_BY_ITSELF: Final = (
    "--disable-background-networking",
    "--disable-client-side-phishing-detection",
    "--disable-component-update",
    # Some components are asked for all the same, and the accounts that are signed in: at a port
    # that the browser takes for unsafe, and does not connect to.
    "--component-updater=url-source=http://127.0.0.1:1/,disable-background-downloads",
    "--gaia-url=http://127.0.0.1:1/",
    "--disable-component-extensions-with-background-pages",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--disable-field-trial-config",
    "--disable-search-engine-choice-screen",
    "--disable-sync",
    "--dns-prefetch-disable",
    "--metrics-recording-only",
    "--no-pings",
    "--no-service-autorun",
    "--allow-browser-signin=false",
    "--component-updater=disable-pings,url-source=https://disabled.invalid/",
    "--gaia-url=https://disabled.invalid",
    "--google-apis-url=https://disabled.invalid",
    "--google-base-url=https://disabled.invalid",
    "--apps-gallery-update-url=https://disabled.invalid/",
)

# What a page could reach beside the network: devices, printers, other programs, speech services.
_NO_OTHER_DOORS: Final = (
    "--deny-permission-prompts",
    "--disable-external-intent-requests",
    "--disable-notifications",
    "--disable-print-preview",
    "--disable-speech-api",
)

# Features of the browser. mDNS and DIAL ask the local network by multicast, DoH and asynchronous
# DNS would go past the resolver's rules, and the rest asks servers of the browser's maker.
_FEATURES: Final = (
    *("AsyncDns", "DnsOverHttps", "UseDnsHttpsSvcb", "EncryptedClientHello"),
    *("MediaRouter", "DialMediaRouteProvider", "WebRtcHideLocalIpsWithMdns"),
    *("OptimizationHints", "OptimizationGuideModelDownloading", "OptimizationHintsFetching"),
    *("Translate", "AutofillServerCommunication", "CertificateTransparencyComponentUpdater"),
    *("NetworkTimeServiceQuerying", "CaptivePortalCheck", "InterestFeedContentSuggestions"),
    *("Prerender2", "PreconnectToSearch", "LoadingPredictor", "DirectSockets"),
    *("IsolatedWebApps", "WebBluetooth", "WebUsb", "NetworkErrorLogging", "Reporting"),
)
# Features of pages: sockets without HTTP, and devices.
_PAGE_FEATURES: Final = (
    *("DirectSockets", "WebTransport", "WebBluetooth", "WebUSB", "WebHID", "Serial"),
    *("WebNFC", "Presentation", "RemotePlayback"),
)

PREFERENCES: Final[Mapping[str, JsonValue]] = {
    "alternate_error_pages": {"enabled": False},
    "net": {"network_prediction_options": 2},
    "printing": {"enabled": False},
    "safebrowsing": {"enabled": False},
    "search": {"suggest_enabled": False},
    "signin": {"allowed": False},
    "translate": {"enabled": False},
    "webrtc": {"ip_handling_policy": "disable_non_proxied_udp"},
}
"""The file `Default/Preferences` of the profile: the same where a flag has lost its meaning.

That of WebRTC suffices alone, as its flag does.
"""


def confinement_flags(proxy: str) -> tuple[str, ...]:
    """Return the flags of a Chromium that connects only to the proxy at `HOST:PORT`."""
    return (
        f"--proxy-server=http://{proxy}",
        *_THROUGH_THE_PROXY,
        *_NO_UDP,
        *_NOTHING_BY_ITSELF,
        *_NO_OTHER_DOORS,
        f"--disable-features={','.join(_FEATURES)}",
        f"--disable-blink-features={','.join(_PAGE_FEATURES)}",
    )

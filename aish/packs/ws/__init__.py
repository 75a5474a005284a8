"""The pack `ws`: a hub that tells browsers and programs of events over WebSockets."""

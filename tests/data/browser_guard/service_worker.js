self.addEventListener("install",e=>e.waitUntil(fetch("http://127.0.0.1:VICTIM/swinstall",{mode:"no-cors"}).catch(()=>0)));
self.addEventListener("activate",e=>e.waitUntil(self.clients.claim()));
self.addEventListener("fetch",e=>{ if(e.request.url.includes("viasw")) e.respondWith(fetch("http://127.0.0.1:VICTIM/viasw",{mode:"no-cors"})); });

const t=(s)=>({}), port=VICTIM, out={};
(async()=>{
 try{await fetch(`http://127.0.0.1:${port}/worker`,{mode:"no-cors"});out.wfetch="ok"}catch(e){out.wfetch=String(e)}
 out.wws=await new Promise(d=>{const w=new WebSocket(`ws://127.0.0.1:${port}/wws`);w.onopen=()=>d("open");w.onerror=()=>d("error")});
 try{const x=new XMLHttpRequest();x.open("GET",`http://127.0.0.1:${port}/wxhr`,false);x.send();out.wxhr="ok"}catch(e){out.wxhr=String(e)}
 try{importScripts(`http://127.0.0.1:${port}/imp`);out.imp="ok"}catch(e){out.imp=String(e)}
 out.wt=typeof WebTransport;
 postMessage(out);
})();

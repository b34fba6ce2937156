// Material searches in a worker, which browsers refuse to pages that were opened as files.
// There, the worker's script runs in a hidden frame instead.
"use strict";
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      this.ready = new Promise((resolve) => {
        inside.document.open();
        inside.document.write(
          "<script>" +
            "var postMessage = (data) => frameElement.receive(data);" +
            "var importScripts = (...urls) => urls.reduce((done, url) => done.then(() =>" +
            " new Promise((resolve) => { const script = document.createElement('script');" +
            " script.src = url; script.onload = resolve; document.head.append(script); })" +
            "), Promise.resolve());" +
            "<\/script>",
        );
        this.frame.receive = (data) => {
          const event = new MessageEvent("message", { data });
          this.dispatchEvent(event);
          if (this.onmessage) this.onmessage(event);
        };
        const script = inside.document.createElement("script");
        script.src = url;
        script.onload = resolve;
        inside.document.head.append(script);
        inside.document.close();
      });
    }
    postMessage(data) {
      this.ready.then(() =>
        this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })),
      );
    }
    terminate() {
      this.frame.remove();
    }
  };
}

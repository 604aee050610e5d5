/* The search runs in a web worker, which browsers refuse to pages that are opened as files. There, and only there, a hidden
   frame takes the worker's place: it has the worker's script, and messages go to and fro as events. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.inner = frame.contentWindow;
      this.waiting = [];
      const inside = this.inner.document;
      this.inner.postMessage = data => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      this.inner.importScripts = (...urls) =>
        Promise.all(urls.map(source => this.load(inside, new URL(source, url).href)));
      this.load(inside, url).then(() => {
        const waiting = this.waiting;
        this.waiting = null;
        waiting.forEach(data => this.postMessage(data));
      });
    }

    load(inside, source) {
      return new Promise((done, failed) => {
        const script = inside.createElement("script");
        script.src = source;
        script.onload = done;
        script.onerror = failed;
        inside.body.appendChild(script);
      });
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data }));
    }

    terminate() {
      this.inner.frameElement.remove();
    }
  };
}

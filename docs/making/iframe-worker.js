// Pages read from a folder may not start workers, and the search is one: there it runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = (this.inside = frame.contentWindow)
      inside.document.open()
      inside.document.write("<!doctype html><html><body></body></html>")
      inside.document.close()
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      inside.importScripts = (...addresses) =>
        addresses.reduce((before, next) => before.then(() => this.load(next)), Promise.resolve())
      this.ready = this.load(address)
    }

    load(address) {
      return new Promise((done, failed) => {
        const script = this.inside.document.createElement("script")
        script.onload = done
        script.onerror = () => failed(new Error(`not loaded: ${address}`))
        script.src = address
        this.inside.document.body.append(script)
      })
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })))
    }

    set onmessage(listener) {
      this.addEventListener("message", listener)
    }

    terminate() {}
  }
}

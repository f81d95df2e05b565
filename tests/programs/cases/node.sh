# title: Node.js: JIT, crypto, zlib, worker threads, an HTTP server
# version: node --version
# timeout: 200
cat >test.js <<'END'
const crypto = require('crypto'), zlib = require('zlib'), http = require('http'), { Worker } = require('worker_threads'), fs = require('fs');
const assert = require('assert');
function sieve(n) { const s = new Uint8Array(n + 1); let c = 0; for (let i = 2; i <= n; i++) { if (!s[i]) { c++; for (let j = i * 2; j <= n; j += i) s[j] = 1; } } return c; }
console.log('primes', sieve(3000000));
class Tree { constructor(d) { if (d > 0) { this.l = new Tree(d - 1); this.r = new Tree(d - 1); } } check() { return 1 + (this.l ? this.l.check() + this.r.check() : 0); } }
console.log('trees', new Tree(16).check());
let x = 0n; for (let i = 1n; i < 2000n; i++) x = x * 31n + i; console.log('bigint', x.toString().length, (x % 1000000007n).toString());
const floats = new Float64Array(1000); for (let i = 0; i < 1000; i++) floats[i] = Math.sin(i) * Math.exp(-i / 300) + Math.pow(i, 0.3); console.log('floats', crypto.createHash('sha256').update(floats.map(v => Math.fround(v))).digest('hex'));
const data = Buffer.from(Array.from({ length: 300000 }, (_, i) => (i * i >> 3) & 255));
for (const h of ['md5', 'sha1', 'sha256', 'sha512', 'sha3-256', 'blake2b512']) console.log(h, crypto.createHash(h).update(data).digest('hex'));
for (const c of ['aes-128-gcm', 'aes-256-cbc', 'chacha20-poly1305']) { const k = Buffer.alloc(c.includes('128') ? 16 : 32, 7), iv = Buffer.alloc(c.includes('cbc') ? 16 : 12, 1); const e = crypto.createCipheriv(c, k, iv, c.includes('poly') ? { authTagLength: 16 } : {}); console.log(c, crypto.createHash('sha1').update(Buffer.concat([e.update(data), e.final()])).digest('hex')); }
assert(zlib.gunzipSync(zlib.gzipSync(data)).equals(data)); assert(zlib.brotliDecompressSync(zlib.brotliCompressSync(data, { params: { [zlib.constants.BROTLI_PARAM_QUALITY]: 5 } })).equals(data));
console.log('json', JSON.stringify(JSON.parse(JSON.stringify(Array.from({ length: 20000 }, (_, i) => ({ i, s: 'x' + i, f: i / 7 }))))).length);
console.log('regexp', 'abc123def456'.repeat(2000).replace(/(?<=[a-z])(\d+)/gu, (_, d) => d * 2).length);
console.log('wasm', new WebAssembly.Instance(new WebAssembly.Module(Buffer.from('0061736d0100000001070160027f7f017f030201000707010361646400000a09010700200020016a0b', 'hex'))).exports.add(40, 2));
console.log('intl', new Intl.NumberFormat('de-DE').format(1234567.891), [...'zäa'].sort(new Intl.Collator('de').compare).join(''));
const worker = n => new Promise(done => new Worker(`const {parentPort, workerData} = require('worker_threads'); let s = 0; for (let i = 0; i < 5e6; i++) s = (s + i * workerData) % 1000003; parentPort.postMessage(s);`, { eval: true, workerData: n }).on('message', done));
(async () => {
  console.log('workers', await Promise.all([1, 2, 3, 4].map(worker)));
  const server = http.createServer((q, r) => r.end(q.url)).listen(0, async () => {
    let total = 0; for (let i = 0; i < 300; i++) total += (await (await fetch(`http://127.0.0.1:${server.address().port}/${i}`)).text()).length;
    console.log('http', total); server.closeAllConnections(); server.close();
    require('child_process').execFile(process.execPath, ['-p', '6*7'], (e, out) => console.log('child', out.trim()));
  });
})();
END
node test.js

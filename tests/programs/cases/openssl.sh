# title: OpenSSL: all digests, ciphers and MACs, signatures, key exchange, TLS between two processes
# version: openssl version
# timeout: 200
python3 -c "
import sys
sys.stdout.buffer.write(bytes((i * i * 31 >> 5) & 255 for i in range(100003)))" >data
openssl list -digest-commands | tr -s ' ' '\n' | grep . | while read digest; do
    openssl dgst -$digest data 2>/dev/null || openssl dgst -$digest -xoflen 32 data 2>/dev/null || echo "no $digest"
done
key=000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f
openssl enc -list | tail -n +2 | tr -s ' ' '\n' | grep '^-' | while read cipher; do
    openssl enc $cipher -K $key -iv 00112233445566778899aabbccddeeff -in data -out enc 2>/dev/null || { echo "no $cipher" && continue; }
    openssl enc -d $cipher -K $key -iv 00112233445566778899aabbccddeeff -in enc 2>/dev/null | cmp - data && echo "$cipher $(md5sum <enc)"
done
openssl mac -digest SHA256 -macopt hexkey:$key -in data HMAC
openssl mac -cipher AES-256-CBC -macopt hexkey:$key -in data CMAC
openssl mac -macopt hexkey:$key -in data Poly1305
openssl kdf -keylen 32 -kdfopt pass:secret -kdfopt salt:abc -kdfopt n:1024 -kdfopt r:8 -kdfopt p:1 SCRYPT
for kind in "RSA -pkeyopt rsa_keygen_bits:2048" "EC -pkeyopt ec_paramgen_curve:P-256" "EC -pkeyopt ec_paramgen_curve:P-521" ED25519 ED448 ML-DSA-65; do
    openssl genpkey -quiet -algorithm $kind -out key.pem && openssl pkey -in key.pem -pubout -out pub.pem
    head -c 3000 data >small
    case $kind in ED* | ML*) raw=-rawin ;; *) raw="-rawin -digest sha256" ;; esac
    openssl pkeyutl -sign -inkey key.pem $raw -in small -out sig && openssl pkeyutl -verify -pubin -inkey pub.pem $raw -in small -sigfile sig | sed "s/^/$kind: /"
done
for kind in X25519 X448 "EC -pkeyopt ec_paramgen_curve:P-384"; do
    openssl genpkey -quiet -algorithm $kind -out a.pem && openssl genpkey -quiet -algorithm $kind -out b.pem
    openssl pkey -in a.pem -pubout -out pa.pem && openssl pkey -in b.pem -pubout -out pb.pem
    openssl pkeyutl -derive -inkey a.pem -peerkey pb.pem -out s1 && openssl pkeyutl -derive -inkey b.pem -peerkey pa.pem -out s2 && cmp s1 s2 && echo "$kind agrees"
done
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=x -keyout k.pem -out c.pem 2>/dev/null
openssl s_server -quiet -accept 8500 -key k.pem -cert c.pem -www >/dev/null 2>&1 &
server=$!
sleep 1
for i in $(seq 100); do openssl s_client -connect localhost:8500 -brief </dev/null >/dev/null 2>&1 && break; sleep 0.1; done
for suite in "-tls1_3 -ciphersuites TLS_AES_128_GCM_SHA256" "-tls1_3 -ciphersuites TLS_CHACHA20_POLY1305_SHA256" "-tls1_2 -cipher ECDHE-RSA-AES256-GCM-SHA384" "-tls1_3 -groups X25519MLKEM768"; do
    printf 'GET / HTTP/1.0\r\n\r\n' | openssl s_client -connect localhost:8500 $suite -CAfile c.pem -verify_return_error -quiet -ign_eof 2>/dev/null | grep -c 'HTTP/1.0 200' | sed "s/^/$suite: /"
done
kill $server

# title: OpenSSL: openssl speed
# keep: ^(speed).*
# timeout: 120
openssl speed -seconds 1 -bytes 8192 -evp aes-128-gcm >/dev/null 2>&1; echo "speed aes-128-gcm $?"
openssl speed -seconds 1 -bytes 8192 -evp sha256 >/dev/null 2>&1; echo "speed sha256 $?"
openssl speed -seconds 1 -bytes 8192 -evp chacha20-poly1305 >/dev/null 2>&1; echo "speed chacha20 $?"
openssl speed -seconds 1 rsa2048 ecdsap256 ecdhx25519 >/dev/null 2>&1; echo "speed rsa2048 ecdsap256 x25519 $?"

# title: nginx and curl: HTTP and HTTPS, ranges, compression, 100 parallel requests
# version: nginx -v 2>&1
# timeout: 120
mkdir -p www logs && head -c 3000000 /usr/bin/git >www/big && echo hello >www/index.html && seq 1 20000 >www/numbers.txt
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost \
    -keyout key.pem -out cert.pem 2>/dev/null
cat >nginx.conf <<END
worker_processes 2;
daemon off;
pid /scratch/pid;
error_log /scratch/logs/error.log;
events { worker_connections 200; }
http {
    access_log /scratch/logs/access.log;
    gzip on; gzip_types text/plain; types { text/html html; text/plain txt; }
    server { listen 8080; root /scratch/www; }
    server { listen 8443 ssl; ssl_certificate /scratch/cert.pem; ssl_certificate_key /scratch/key.pem; root /scratch/www;
             location /proxy/ { proxy_pass http://127.0.0.1:8080/; } }
}
END
chmod -R a+rX /scratch
nginx -p /scratch -c /scratch/nginx.conf 2>/dev/null &
server=$!
for i in $(seq 200); do curl -s -o /dev/null http://localhost:8080/ && break; sleep 0.1; done
curl -s http://localhost:8080/
curl -s --cacert cert.pem https://localhost:8443/
curl -s http://localhost:8080/big | cmp - www/big && echo big
curl -s --cacert cert.pem https://localhost:8443/proxy/big | cmp - www/big && echo big by proxy and TLS
curl -s -r 1000-1999 http://localhost:8080/big | wc -c
curl -s --compressed http://localhost:8080/numbers.txt | cmp - www/numbers.txt && echo compressed
curl -s --tls-max 1.2 --cacert cert.pem https://localhost:8443/numbers.txt | cmp - www/numbers.txt && echo TLS 1.2
curl -s -o /dev/null -w '%{http_code}\n' http://localhost:8080/missing
curl -s --parallel --parallel-max 20 -o '/scratch/got#1' 'http://localhost:8080/numbers.txt?[1-100]' && cat got* | wc -c
kill -QUIT $server
wait $server
echo ended with $?
wc -l <logs/access.log

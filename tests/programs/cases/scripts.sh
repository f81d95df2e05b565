# title: Lua, Ruby, PHP
# version: lua -v; ruby --version | cut -d ' ' -f 1,2; php --version | head -n 1 | cut -d ' ' -f 1,2
# timeout: 200
lua -e 'local t = {} for i = 1, 200000 do t[i] = (i * 7919) % 100003 end table.sort(t) local s = 0 for i, v in ipairs(t) do s = (s * 31 + v) % 1000000007 end print(s, string.format("%.14g", math.exp(1.5)), ("x"):rep(5), pcall(error, "e"))'
ruby -e 'require "digest"; require "json"; a = (1..100000).map { |i| i * 7919 % 100003 }.sort; puts a.each_slice(1000).map(&:sum).take(3).inspect, Digest::SHA256.hexdigest(a.join(",")), JSON.generate({"a" => [1, 2.5, nil]}), 2**200, Thread.new { 6 * 7 }.value, "naïve".unicode_normalize(:nfd).length'
php -r '$a = []; for ($i = 0; $i < 100000; $i++) $a["k" . ($i * 7919 % 100003)] = $i; ksort($a); echo md5(serialize($a)), " ", json_encode(array_slice($a, 0, 3)), " ", preg_replace_callback("/[0-9]+/", fn($m) => $m[0] * 2, "a1b22"), " ", sprintf("%.10f", sqrt(2)), "\n";'

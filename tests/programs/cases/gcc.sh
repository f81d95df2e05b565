# title: GCC builds bzip2 and its tests pass
# version: gcc --version | head -n 1
# timeout: 300
cp -r /src/bzip2-* bzip2 && cd bzip2
make -s -j2 CC=gcc bzip2 bzip2recover libbz2.a 2>&1 | grep -iE 'error|warning'
./bzip2 -1 <sample1.ref >s1.rb2 && cmp sample1.bz2 s1.rb2 && ./bzip2 -2 <sample2.ref | cmp sample2.bz2 - && ./bzip2 -3 <sample3.ref | cmp sample3.bz2 - && echo compressed
./bzip2 -d <sample1.bz2 | cmp sample1.ref - && ./bzip2 -d <sample2.bz2 | cmp sample2.ref - && ./bzip2 -ds <sample3.bz2 | cmp sample3.ref - && echo decompressed
cat >t.cc <<'END'
#include <iostream>
#include <map>
#include <string>
#include <algorithm>
#include <vector>
#include <stdexcept>
#include <thread>
#include <atomic>
int main() { std::map<std::string, int> m; for (int i = 0; i < 1000; i++) m[std::to_string(i * 7919 % 1000)] += i; long s = 0; for (auto &[k, v] : m) s = s * 31 + v; std::vector<int> v(1000); for (auto &x : v) x = s++ % 997; std::sort(v.begin(), v.end());
 try { v.at(1000); } catch (const std::out_of_range &) { std::cout << "caught\n"; } std::atomic<int> n{0}; std::vector<std::thread> t; for (int i = 0; i < 4; i++) t.emplace_back([&] { for (int j = 0; j < 10000; j++) n++; }); for (auto &x : t) x.join(); std::cout << s << ' ' << v[500] << ' ' << n << '\n'; }
END
g++ -std=c++20 -O2 -g t.cc -o t && ./t

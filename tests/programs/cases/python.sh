# title: Python: modules of its test package
# version: python3 --version
# keep: ^(0:\S+ .*\[ *\d+/\d+\S*\] |)(test_\w+ .*|Total tests: .*|Result: .*|\d+ tests? .*)
# drop: ^0:\S+ load avg: \S+ |^0:\S+ |\[[^]]*\] | \([\d.]+ (sec|ms)\)|passed in .*
# order: any
# timeout: 400
python3 -m test -q -u none --timeout 200 test_dict test_list test_set test_int test_float test_complex test_math test_re test_struct test_unicode test_json \
    test_zlib test_hashlib test_decimal test_ctypes test_threading test_signal test_socket test_subprocess test_asyncio.test_tasks \
    test_mmap test_os test_posix test_select test_time test_array test_bytes test_pickle test_sqlite3

// Compresses and expands data with deflate, and takes SHA-256, CRC-32 and AES-CTR of it.
// Exercises byte-by-byte loops, table look-ups and 32-bit rotates as Go compiles them.
// Arguments: KIBIBYTES (default 6000).
package main

import (
	"bytes"
	"compress/flate"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strconv"
)

func main() {
	kibibytes := 6000
	if len(os.Args) > 1 {
		n, err := strconv.Atoi(os.Args[1])
		if err != nil || n < 1 || n > 1<<20 {
			fmt.Fprintln(os.Stderr, "digest: give a number of kibibytes from 1 to 1048576")
			os.Exit(2)
		}
		kibibytes = n
	}
	// Half regular, half random, so that the compressor has both to do.
	data := make([]byte, kibibytes*1024)
	state := uint64(88172645463325252)
	for i := range data {
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
		if i>>9&1 == 0 {
			data[i] = byte(i>>3) & 31
		} else {
			data[i] = byte(state >> 40)
		}
	}
	fmt.Printf("sha256 %x\n", sha256.Sum256(data))
	fmt.Printf("crc32 %08x, castagnoli %08x\n", crc32.ChecksumIEEE(data), crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli)))
	var packed bytes.Buffer
	writer, err := flate.NewWriter(&packed, 6)
	if err != nil {
		panic(err)
	}
	writer.Write(data)
	writer.Close()
	fmt.Println("deflate:", len(data), "to", packed.Len(), "bytes")
	unpacked, err := io.ReadAll(flate.NewReader(&packed))
	if err != nil {
		panic(err)
	}
	fmt.Println("inflate: equal", bytes.Equal(unpacked, data))
	block, err := aes.NewCipher([]byte("a 16-byte secret"))
	if err != nil {
		panic(err)
	}
	cipher.NewCTR(block, make([]byte, aes.BlockSize)).XORKeyStream(unpacked, data)
	fmt.Printf("aes-ctr then sha256 %x\n", sha256.Sum256(unpacked))
}

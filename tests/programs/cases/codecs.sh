# title: FLAC and Opus tools: encode, verify, decode
# timeout: 120
python3 - <<'END'
import struct, math
d = b"".join(struct.pack("<hh", int(12000 * math.sin(i / 17) + (i * 7919 % 997)), int(9000 * math.sin(i / 31))) for i in range(48000 * 4))
open("in.wav", "wb").write(b"RIFF" + struct.pack("<I", 36 + len(d)) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 2, 48000, 192000, 4, 16) + b"data" + struct.pack("<I", len(d)) + d)
END
for level in 0 5 8; do flac -s -V -$level -f in.wav -o $level.flac && flac -s -t $level.flac && flac -s -d -f $level.flac -o out.wav && cmp in.wav out.wav && wc -c <$level.flac; done
opusenc --quiet --serial 1 in.wav out.opus && opusdec --quiet --no-dither out.opus out2.wav && wc -c <out2.wav

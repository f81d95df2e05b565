# title: FFmpeg: 11 video and 8 audio encoders and decoders, filters
# version: ffmpeg -version | head -n 1
# timeout: 300
run() { ffmpeg -v error -nostdin -threads 2 "$@" || echo "ended with $?: $*"; }
run -f lavfi -i testsrc2=size=192x108:rate=25 -t 1 -pix_fmt yuv420p -bitexact source.y4m
run -f lavfi -i "sine=frequency=440:sample_rate=48000" -t 2 -bitexact source.wav
for codec in mpeg2video mpeg4 mjpeg ffv1 huffyuv libx264 libx265 libvpx libvpx-vp9 libaom-av1 libtheora; do
    case $codec in libx265) more="-x265-params log-level=error:pools=1:frame-threads=1" ;; libaom-av1) more="-cpu-used 8 -row-mt 0" ;; libvpx) more="-deadline good -cpu-used 2" ;; libvpx-vp9) more="-deadline realtime -cpu-used 8" ;; *) more= ;; esac
    run -i source.y4m -frames:v 12 -c:v $codec $more -threads 1 -bitexact -y $codec.mkv
    run -i $codec.mkv -f framemd5 -bitexact - | grep -v '^#' | md5sum | sed "s/-/$codec/"
done
for codec in aac ac3 flac alac libmp3lame libopus libvorbis pcm_mulaw; do
    run -i source.wav -c:a $codec -bitexact -y $codec.mka
    run -i $codec.mka -f s16le -bitexact - | wc -c | sed "s/$/ $codec/"
done
run -i flac.mka -f md5 -bitexact -
run -i source.y4m -vf "scale=320:180:flags=bicubic+bitexact+accurate_rnd,hflip,unsharp,drawbox" -f md5 -bitexact -
run -i source.y4m -vf "yadif,eq=contrast=1.2,format=rgb24" -frames:v 5 -f md5 -sws_flags +bitexact+accurate_rnd -

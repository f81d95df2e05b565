//! Records device activity for the trace: frames on wires, DMA and interrupts. Flow events follow each received frame.

use std::collections::VecDeque;

use longma_devices::ethernet::mac::Counters;
use longma_sim::{Duration, Time};

/// Consecutive accesses of a device with at most this gap are shown as one. An estimate of the shortest gap that a
/// reader can distinguish.
const MAX_MERGED_GAP: Duration = Duration::from_ps(50_000);
/// Preamble and start delimiter, which precede each frame on the wire (IEEE 802.3-2018, 3.2.1).
const PREAMBLE_BYTES: u64 = 8;

/// A track of a device in the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceTrack {
    /// Frames to the device.
    WireIn,
    /// Frames from the device.
    WireOut,
    /// Accesses to memory and in-core stores.
    Dma,
    /// Interrupts, from assertion until the file is ready.
    Interrupt,
}

impl DeviceTrack {
    /// All tracks and their names.
    pub const ALL: [(Self, &str); 4] = [
        (Self::WireIn, "wire in"),
        (Self::WireOut, "wire out"),
        (Self::Dma, "DMA"),
        (Self::Interrupt, "interrupt"),
    ];
}

/// A slice of the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceSlice {
    /// The number of the device.
    pub part: usize,
    pub track: DeviceTrack,
    pub name: String,
    pub begin: Time,
    pub end: Time,
    /// Flow events that end here.
    pub from: Vec<u64>,
    /// Flow events that start here.
    pub to: Vec<u64>,
}

/// DMA of a device that is not complete yet.
#[derive(Clone, Debug)]
struct Dma {
    begin: Time,
    end: Time,
    bytes: [u64; 2],
    accesses: u64,
    frames: Vec<u64>,
}

/// The state of one device.
#[derive(Clone, Debug, Default)]
struct DeviceActivity {
    dma: Option<Dma>,
    /// The end of the last slice of each track.
    taken: [Time; 4],
    /// Received frames that are neither in memory nor dropped yet.
    arrived: VecDeque<u64>,
    /// Frames in memory that no interrupt has reported yet.
    unreported: Vec<u64>,
    good: u64,
    dropped: u64,
    asserted: Option<Time>,
}

/// The recorded activity of all devices.
#[derive(Clone, Debug, Default)]
pub(crate) struct ActivityRecorder {
    parts: Vec<DeviceActivity>,
    activity: Vec<DeviceSlice>,
    arrows: u64,
    /// Reported frames that no thread has processed yet.
    reported: Vec<(Time, u64)>,
}

impl ActivityRecorder {
    /// Creates a recorder for `parts` devices.
    pub fn new(parts: usize) -> Self {
        Self { parts: vec![DeviceActivity::default(); parts], ..Self::default() }
    }

    fn push(
        &mut self,
        part: usize,
        track: DeviceTrack,
        name: String,
        (begin, end): (Time, Time),
    ) -> &mut DeviceSlice {
        // Slices of a track must not overlap.
        let taken = &mut self.parts[part].taken[track as usize];
        let begin = begin.max(*taken);
        let end = end.max(begin);
        *taken = end;
        self.activity.push(DeviceSlice { part, track, name, begin, end, from: Vec::new(), to: Vec::new() });
        let last = self.activity.len() - 1;
        &mut self.activity[last]
    }

    /// Records a frame of `bytes` bytes that arrives at `at` over a wire of `rate` bits per second.
    pub fn frame(&mut self, part: usize, track: DeviceTrack, bytes: usize, at: Time, rate: u64) {
        let ps = u128::from(bytes as u64 + PREAMBLE_BYTES) * 8_000_000_000_000 / u128::from(rate.max(1));
        let begin = Time::from_ps(at.ps().saturating_sub(ps as u64));
        let arrow = self.arrows + 1;
        let slice = self.push(part, track, format!("{bytes} bytes"), (begin, at));
        if track == DeviceTrack::WireIn {
            slice.to.push(arrow);
            self.arrows = arrow;
            self.parts[part].arrived.push_back(arrow);
        }
    }

    /// Records a DMA access.
    pub fn dma(&mut self, part: usize, bytes: usize, writes: bool, begin: Time, end: Time) {
        let dma = &mut self.parts[part].dma;
        let is_adjacent = |dma: &Dma| begin.ps() <= dma.end.ps().saturating_add(MAX_MERGED_GAP.ps());
        if !dma.as_ref().is_some_and(is_adjacent) {
            self.show_dma(part);
        }
        let dma = self.parts[part].dma.get_or_insert_with(|| Dma {
            begin,
            end,
            bytes: [0; 2],
            accesses: 0,
            frames: Vec::new(),
        });
        dma.end = dma.end.max(end);
        dma.bytes[usize::from(writes)] += bytes as u64;
        dma.accesses += 1;
    }

    fn show_dma(&mut self, part: usize) {
        let Some(dma) = self.parts[part].dma.take() else { return };
        let [read, written] = dma.bytes;
        let name = match (read, written) {
            (read, 0) => format!("reads {read} bytes"),
            (0, written) => format!("writes {written} bytes"),
            _ => format!("reads {read} bytes, writes {written}"),
        };
        self.push(part, DeviceTrack::Dma, name, (dma.begin, dma.end)).from = dma.frames;
    }

    /// Processes a MAC's counters after an event: frames that are complete in memory or dropped are no longer in
    /// transit.
    pub fn counted(&mut self, part: usize, counters: &Counters) {
        let of = &mut self.parts[part];
        let dropped = counters.rx_crc
            + counters.rx_short
            + counters.rx_long
            + counters.rx_filtered
            + counters.rx_missed
            + counters.rx_bad_descriptor;
        // Most dropped frames are dropped on arrival.
        for _ in of.dropped..dropped {
            of.arrived.pop_back();
        }
        for _ in of.good..counters.rx_good {
            if let Some(arrow) = of.arrived.pop_front() {
                of.unreported.push(arrow);
                of.dma.iter_mut().for_each(|dma| dma.frames.push(arrow));
            }
        }
        (of.good, of.dropped) = (counters.rx_good, dropped);
    }

    /// Records the assertion of the interrupt line.
    pub fn asserted(&mut self, part: usize, at: Time) {
        self.parts[part].asserted = Some(at);
    }

    /// Records that the device's file became ready.
    pub fn delivered(&mut self, part: usize, at: Time) {
        let of = &mut self.parts[part];
        let begin = of.asserted.take().unwrap_or(at);
        let frames = std::mem::take(&mut of.unreported);
        let first = frames.first().copied();
        let slice = self.push(part, DeviceTrack::Interrupt, "interrupt".into(), (begin, at));
        slice.from = frames;
        slice.to.extend(first);
        self.reported.extend(first.map(|arrow| (at, arrow)));
    }

    /// Takes the flow events of interrupts up to `at`, for the thread that runs next.
    pub fn take_reported_frames(&mut self, at: Time) -> Vec<u64> {
        let (reported, left) = self.reported.iter().partition(|(since, _)| *since <= at);
        self.reported = left;
        reported.into_iter().map(|(_, arrow): (Time, u64)| arrow).collect()
    }

    /// Takes all slices that are complete at `until`.
    pub fn take(&mut self, until: Time) -> Vec<DeviceSlice> {
        for part in 0..self.parts.len() {
            let is_finished = |dma: &Dma| dma.end.ps().saturating_add(MAX_MERGED_GAP.ps()) < until.ps();
            if self.parts[part].dma.as_ref().is_some_and(is_finished) {
                self.show_dma(part);
            }
        }
        std::mem::take(&mut self.activity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ps: u64) -> Time {
        Time::from_ps(ps)
    }

    #[test]
    fn a_frame_is_linked_from_the_wire_to_memory_to_the_interrupt() {
        let mut activity = ActivityRecorder::new(1);
        activity.frame(0, DeviceTrack::WireIn, 117, at(1_000_000), 1_000_000_000);
        activity.dma(0, 117, true, at(1_000_100), at(1_200_000));
        activity.counted(0, &Counters { rx_good: 1, ..Counters::default() });
        activity.asserted(0, at(1_210_000));
        activity.delivered(0, at(1_460_000));
        let shown = activity.take(at(9_000_000));
        let rows: Vec<DeviceTrack> = shown.iter().map(|slice| slice.track).collect();
        assert_eq!(rows, [DeviceTrack::WireIn, DeviceTrack::Interrupt, DeviceTrack::Dma]);
        assert_eq!(shown[0].begin, at(0), "125 bytes with the preamble take 1 us at 1 Gb/s");
        assert_eq!(shown[0].to, shown[2].from, "wire to memory");
        assert_eq!(shown[2].from, shown[1].from, "memory to interrupt");
        assert_eq!(activity.take_reported_frames(at(1_459_999)), [0; 0], "no thread can know yet");
        assert_eq!(activity.take_reported_frames(at(1_460_000)), shown[1].to);
    }

    #[test]
    fn a_dropped_frame_has_no_link() {
        let mut activity = ActivityRecorder::new(1);
        activity.frame(0, DeviceTrack::WireIn, 64, at(1000), 1_000_000_000);
        activity.counted(0, &Counters { rx_crc: 1, ..Counters::default() });
        activity.frame(0, DeviceTrack::WireIn, 64, at(2_000_000), 1_000_000_000);
        activity.dma(0, 60, true, at(2_000_000), at(2_100_000));
        activity.counted(0, &Counters { rx_crc: 1, rx_good: 1, ..Counters::default() });
        let shown = activity.take(at(9_000_000));
        assert_eq!(shown[2].from, shown[1].to, "the second frame, not the first");
    }

    #[test]
    fn nearby_accesses_are_merged_and_rows_do_not_overlap() {
        let mut activity = ActivityRecorder::new(1);
        for access in 0..10 {
            activity.dma(0, 32, access % 2 == 0, at(access * 1000), at(access * 1000 + 40_000));
        }
        activity.dma(0, 32, true, at(1_000_000), at(1_040_000));
        let shown = activity.take(at(9_000_000));
        assert_eq!(shown.len(), 2);
        assert_eq!(shown[0].name, "reads 160 bytes, writes 160");
        assert!(shown[0].end <= shown[1].begin);
    }
}

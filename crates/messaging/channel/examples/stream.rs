//! Sends 1 GB from one process to another and prints how long it took.

use longma_channel::{Connection, Listener};
use std::io::{self, Read};
use std::time::Instant;

const BYTES: u64 = 1_000_000_000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(name) = std::env::args().nth(1) {
        let mut stream = Connection::connect(name)?.into_stream();
        io::copy(&mut io::repeat(1).take(BYTES), &mut stream)?;
        return Ok(stream.close()?);
    }
    let name = format!("stream-{}", std::process::id());
    let listener = Listener::bind(&name)?;
    let mut sender = std::process::Command::new(std::env::current_exe()?).arg(&name).spawn()?;
    let mut stream = listener.accept()?.into_stream();
    let begin = Instant::now();
    let received = io::copy(&mut stream, &mut io::sink())?;
    println!("{received} bytes in {:.2} s", begin.elapsed().as_secs_f64());
    sender.wait()?;
    Ok(())
}

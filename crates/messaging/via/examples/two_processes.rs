//! Two processes: one sends a line, and the other returns it in capitals. The example shows the calls; it is not tuned
//! for speed.

use longma_via::*;
use std::process::Command;
use std::time::Duration;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(10));
const HALF: usize = 2048;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let nic = Nic::open()?;
    let tag = nic.create_protection_tag()?;
    let vi = nic.create_vi(ViAttributes::new(tag), None, None)?;
    let memory = nic.allocate(2 * HALF, MemoryAttributes::remote(tag))?;
    // The first half is for receiving, the second for sending.
    vi.post_receive(&Descriptor::receive(&[memory.segment(0, HALF)]))?;
    let send = |text: &str| {
        memory.write(HALF, text.as_bytes());
        vi.post_send(&Descriptor::send(&[memory.segment(HALF, text.len())]))?;
        vi.send_wait(TIMEOUT)
    };
    let receive = || {
        let message = vi.receive_wait(TIMEOUT)?;
        let mut bytes = vec![0; message.length as usize];
        memory.read(0, &mut bytes);
        Ok::<_, Error>(String::from_utf8_lossy(&bytes).into_owned())
    };
    if let Some(name) = std::env::args().nth(1) {
        vi.connect(&Address::local("client"), &Address::local(&name), TIMEOUT)?;
        send("hello from another process")?;
        println!("client: {}", receive()?);
        return Ok(());
    }
    let name = Address::local(format!("echo-{}", std::process::id()));
    let listener = nic.listen(&name)?;
    let mut client = Command::new(std::env::current_exe()?).arg(name.to_string()).spawn()?;
    listener.wait(TIMEOUT)?.accept(&vi)?;
    let reply = receive()?;
    println!("server: {reply}");
    send(&reply.to_uppercase())?;
    client.wait()?;
    Ok(())
}

//! An echo service and a client: `echo` starts the service, `echo WORDS` asks it.

use longma_channel::{Connection, Error, Listener};

fn main() -> Result<(), Error> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if !words.is_empty() {
        println!(
            "{}",
            String::from_utf8_lossy(&Connection::connect("echo")?.call(words.join(" ").as_bytes())?)
        );
        return Ok(());
    }
    let listener = Listener::bind("echo")?;
    loop {
        let mut connection = listener.accept()?;
        std::thread::spawn(move || -> Result<(), Error> {
            while let Some(request) = connection.receive()? {
                connection.respond(&request, &request.bytes)?;
            }
            Ok(())
        });
    }
}

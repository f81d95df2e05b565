//! Prints ten positions from `publisher`.

use longma_pubsub::{Message, Subscriber};
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes};

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Position([f64; 3]);

impl Message for Position {
    const NAME: &str = "robot.Position";
}

fn main() -> Result<(), longma_pubsub::Error> {
    let mut subscriber = Subscriber::<Position>::connect_within("robot.position", Duration::from_secs(10))?;
    for _ in 0..10 {
        println!("{:?}", subscriber.receive_wait(None)?.read()?);
    }
    Ok(())
}

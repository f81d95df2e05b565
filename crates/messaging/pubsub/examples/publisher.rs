//! Publishes a position every 10 ms. Run `subscriber` beside it.

use longma_pubsub::{Message, Publisher};
use zerocopy::{FromBytes, Immutable, IntoBytes};

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Position([f64; 3]);

impl Message for Position {
    const NAME: &str = "robot.Position";
}

fn main() -> Result<(), longma_pubsub::Error> {
    let mut publisher = Publisher::<Position>::create("robot.position")?;
    for step in 0.. {
        publisher.publish(&Position([f64::from(step), 0.5, 0.25]))?;
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    Ok(())
}

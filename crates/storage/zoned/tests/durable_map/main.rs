//! The durable map, by what is done to it: a file each, in one program, since each would compile the map anew.
//! Not on the kernel's own devices: see `store_devices`.

#[path = "../support/adversary.rs"]
mod adversary;
#[path = "../support/mod.rs"]
mod support;

mod bulk;
mod by_chance;
mod damage;
mod faults;
mod flipped_bits;
mod full;
mod hostile;
mod load;
mod load_faults;
mod model;
mod power_cuts;
mod readers;
mod repair;

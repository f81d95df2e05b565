//! Tests of the durable map on emulated devices. All modules are in one test program, to avoid compiling the map for
//! each of them.

#[path = "../support/adversary.rs"]
mod adversary;
#[path = "../support/mod.rs"]
mod support;

mod bulk;
mod damage;
mod deletions;
mod faults;
mod flipped_bits;
mod full;
mod hostile;
mod load;
mod load_faults;
mod model;
mod power_cuts;
mod random_faults;
mod readers;
mod repair;

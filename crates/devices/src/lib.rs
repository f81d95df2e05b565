//! Models of devices: what they can do at which time. One folder a device.
//! Not the software that drives them, nor the firmware that runs on them.
//! Source: each device's folder cites its own.

pub mod lanai;

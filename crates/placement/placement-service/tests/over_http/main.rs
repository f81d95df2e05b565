//! The service as its users have it, by what they do: a file each, in one program, since each would link the service anew.
//! Not the command: that is tested where it is.

mod api;
mod hostile;
mod mistaken;
mod odd_circumstances;
mod security;
mod service;
mod tls;

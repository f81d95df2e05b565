//! What a service's certificate says of itself, told at the start and not when clients refuse it.
//! Not whether it is to be trusted: that is for clients (rustls).
//! Source: RFC 5280, 4.1.2.5 (validity), 4.2.1.6 (names), 4.2.1.9 (certification authorities).

use rustls::pki_types::CertificateDer;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{SystemTime, UNIX_EPOCH};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// A certificate that ends sooner is told of.
const SOON_S: i64 = 14 * 24 * 3600;

/// What a certificate says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Said {
    names: Vec<String>,
    addresses: Vec<IpAddr>,
    /// Whether the file holds who vouches for it, or it does itself.
    pub is_whole: bool,
    /// What clients will not like, each a sentence.
    pub warnings: Vec<String>,
}

impl Said {
    /// The name by which a client has to know the service that listens at this address.
    pub fn name_at(&self, address: IpAddr) -> Option<String> {
        if self.addresses.contains(&address) {
            return None;
        }
        // Any host's name will do for one that is good for all of a domain.
        let named = self.names.first().map(|name| name.replacen('*', "placement", 1));
        named.or_else(|| {
            self.addresses.first().map(|ip| match ip {
                IpAddr::V4(ip) => ip.to_string(),
                IpAddr::V6(ip) => format!("[{ip}]"),
            })
        })
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).map(|b| IpAddr::from(Ipv4Addr::from(b)));
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(|b| IpAddr::from(Ipv6Addr::from(b)))).ok()
}

fn warn_of_time(said: &mut Said, certificate: &X509Certificate<'_>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
    let (from, to) = (certificate.validity().not_before, certificate.validity().not_after);
    if to.timestamp() < now {
        said.warnings.push(format!("it is expired since {to}, and clients refuse it: renew it"));
    } else if to.timestamp() < now + SOON_S {
        said.warnings.push(format!("it expires at {to}: renew it, and start the service anew"));
    }
    if from.timestamp() > now {
        said.warnings
            .push(format!("it begins at {from}, and clients refuse it until then: is the clock right?"));
    }
}

/// What the first certificate of a chain says.
///
/// # Errors
/// If no client would take it whenever it asks, with what to do.
pub(crate) fn said(chain: &[CertificateDer<'_>]) -> Result<Said, String> {
    let first = chain.first().ok_or("there is no certificate in it (PEM: BEGIN CERTIFICATE)")?;
    let (_, certificate) =
        X509Certificate::from_der(first).map_err(|error| format!("it cannot be read: {error}"))?;
    if certificate.is_ca() {
        let why = "it is a certification authority's (CA:TRUE), which clients do not take for a service's: \
            make one with `openssl req -x509 ... -addext basicConstraints=critical,CA:FALSE`, or have this one sign one";
        return Err(why.into());
    }
    let mut said = Said::default();
    let names = certificate.subject_alternative_name().ok().flatten();
    for name in names.iter().flat_map(|names| &names.value.general_names) {
        match name {
            GeneralName::DNSName(name) => said.names.push((*name).to_string()),
            GeneralName::IPAddress(bytes) => said.addresses.extend(address(bytes)),
            _ => {}
        }
    }
    if said.names.is_empty() && said.addresses.is_empty() {
        let why = "it names no host (subjectAltName), and clients refuse it: make one with \
            `openssl req -x509 ... -addext subjectAltName=DNS:HOST`";
        said.warnings.push(why.into());
    }
    warn_of_time(&mut said, &certificate);
    let issuer = certificate.issuer().as_raw();
    let is_whole = |der: &CertificateDer<'_>| {
        X509Certificate::from_der(der).is_ok_and(|(_, one)| one.subject().as_raw() == issuer)
    };
    said.is_whole = chain.iter().any(is_whole);
    Ok(said)
}

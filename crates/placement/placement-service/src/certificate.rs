//! Checks the service's certificate at startup, so that the operator sees problems before clients reject it. Clients
//! check trust (rustls).
//!
//! Source: RFC 5280, 4.1.2.5 (validity), 4.2.1.6 (names), 4.2.1.9 (certification authorities).

use rustls::pki_types::CertificateDer;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{SystemTime, UNIX_EPOCH};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Warn about certificates that expire within two weeks.
const EXPIRY_WARNING_S: i64 = 14 * 24 * 3600;

/// Result of the check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CertificateInfo {
    names: Vec<String>,
    addresses: Vec<IpAddr>,
    /// Whether the file contains the whole chain, or the certificate is self-signed.
    pub has_whole_chain: bool,
    /// Problems that clients will have with it, one sentence each.
    pub warnings: Vec<String>,
}

impl CertificateInfo {
    /// The host name that clients must use to reach the service at this address; `None` if the certificate covers the
    /// address itself.
    pub fn name_at(&self, address: IpAddr) -> Option<String> {
        if self.addresses.contains(&address) {
            return None;
        }
        // A wildcard certificate is valid for any host name in the domain.
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

fn warn_about_validity(info: &mut CertificateInfo, certificate: &X509Certificate<'_>) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() as i64);
    let (from, to) = (certificate.validity().not_before, certificate.validity().not_after);
    if to.timestamp() < now {
        info.warnings.push(format!("it expired at {to}, so clients reject it: renew it"));
    } else if to.timestamp() < now + EXPIRY_WARNING_S {
        info.warnings.push(format!("it expires at {to}: renew it and restart the service"));
    }
    if from.timestamp() > now {
        info.warnings
            .push(format!("it is not valid before {from}, so clients reject it until then: check the clock"));
    }
}

/// Checks the first certificate of a chain.
///
/// # Errors
/// No client would ever accept the certificate; the message contains the remedy.
pub(crate) fn inspect(chain: &[CertificateDer<'_>]) -> Result<CertificateInfo, String> {
    let first = chain.first().ok_or("it contains no certificate (PEM: BEGIN CERTIFICATE)")?;
    let (_, certificate) =
        X509Certificate::from_der(first).map_err(|error| format!("it cannot be read: {error}"))?;
    if certificate.is_ca() {
        let why = "it is a certification authority's certificate (CA:TRUE), which clients reject for a \
            service: create one with `openssl req -x509 ... -addext basicConstraints=critical,CA:FALSE`, \
            or one signed by this authority";
        return Err(why.into());
    }
    let mut info = CertificateInfo::default();
    let names = certificate.subject_alternative_name().ok().flatten();
    for name in names.iter().flat_map(|names| &names.value.general_names) {
        match name {
            GeneralName::DNSName(name) => info.names.push((*name).to_string()),
            GeneralName::IPAddress(bytes) => info.addresses.extend(address(bytes)),
            _ => {}
        }
    }
    if info.names.is_empty() && info.addresses.is_empty() {
        let why = "it names no host (subjectAltName), so clients reject it: create one with `openssl req \
            -x509 ... -addext subjectAltName=DNS:HOST`";
        info.warnings.push(why.into());
    }
    warn_about_validity(&mut info, &certificate);
    let issuer = certificate.issuer().as_raw();
    let is_issuer = |der: &CertificateDer<'_>| {
        X509Certificate::from_der(der).is_ok_and(|(_, one)| one.subject().as_raw() == issuer)
    };
    info.has_whole_chain = chain.iter().any(is_issuer);
    Ok(info)
}

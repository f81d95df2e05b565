//! Certificates found in practice: issued for a host name, signed by a CA, expired, of the wrong kind.

use crate::service::*;
use longma_placement::Policy;
use longma_placement_service::client::ClientError;
use longma_placement_service::wire::VmPage;
use longma_placement_service::{Access, Client, Options, serve};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(vec![name.to_string()]).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    params
}

fn authority(name: &str) -> CertificateParams {
    let mut params = params(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
}

fn files(folder: &Path, certificates: &str, key: &KeyPair) -> (PathBuf, PathBuf) {
    let (certificate, file) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&certificate, certificates).unwrap();
    std::fs::write(&file, key.serialize_pem()).unwrap();
    (certificate, file)
}

fn self_signed(folder: &Path, params: &CertificateParams) -> (PathBuf, PathBuf) {
    let key = KeyPair::generate().unwrap();
    files(folder, &params.self_signed(&key).unwrap().pem(), &key)
}

fn signed(params: &CertificateParams, key: &KeyPair, by: &Issuer<'_, &KeyPair>) -> String {
    params.signed_by(key, by).unwrap().pem()
}

fn list_vms(access: &Access) -> Result<(), ClientError> {
    Client::new(access)?.get::<VmPage>("/v1/vms").map(drop)
}

fn untrusted_reason(access: &Access) -> String {
    match list_vms(access) {
        Err(ClientError::Untrusted { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_local_client_uses_the_certificates_name() {
    let folder = tempfile::tempdir().unwrap();
    let tls = Some(self_signed(folder.path(), &params("placement.example")));
    let service = service_with(TestOptions { tls, ..TestOptions::default() });
    assert!(service.access.url.starts_with("https://placement.example:"), "{}", service.access.url);
    list_vms(&service.access).unwrap();
    // The certificate is checked: under any other name it is rejected.
    let url = format!("https://{}", service.access.address.unwrap());
    let why = untrusted_reason(&Access { url, address: None, ..service.access.clone() });
    assert!(why.contains("another name"), "{why}");
}

#[test]
fn a_certificate_chain_is_accepted_from_any_trusted_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let [root_key, middle_key, key] = [(); 3].map(|()| KeyPair::generate().unwrap());
    let root = authority("root").self_signed(&root_key).unwrap();
    let (root_says, middle_says) = (authority("root"), authority("middle"));
    let by_root = signed(&middle_says, &middle_key, &Issuer::from_params(&root_says, &root_key));
    let leaf = signed(&params("localhost"), &key, &Issuer::from_params(&middle_says, &middle_key));
    let tls = Some(files(folder.path(), &(leaf.clone() + &by_root), &key));
    let service = service_with(TestOptions { tls, ..TestOptions::default() });
    list_vms(&service.access).unwrap();
    // The issuer's certificate, after an unrelated one.
    let other = params("other").self_signed(&KeyPair::generate().unwrap()).unwrap();
    let file = folder.path().join("root.pem");
    std::fs::write(&file, other.pem() + &root.pem()).unwrap();
    list_vms(&Access { certificate: Some(file.clone()), ..service.access.clone() }).unwrap();
    std::fs::write(&file, other.pem()).unwrap();
    let why = untrusted_reason(&Access { certificate: Some(file.clone()), ..service.access.clone() });
    assert!(why.contains("with --certificate"), "{why}");
    std::fs::write(&file, "no certificate").unwrap();
    let none = list_vms(&Access { certificate: Some(file), ..service.access.clone() }).unwrap_err();
    assert!(none.to_string().contains("holds no certificate"), "{none}");
}

#[test]
fn an_untrusted_certificate_is_reported_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let [root_key, key] = [(); 2].map(|()| KeyPair::generate().unwrap());
    let root_says = authority("root");
    let leaf = signed(&params("localhost"), &key, &Issuer::from_params(&root_says, &root_key));
    let tls = Some(files(folder.path(), &leaf, &key));
    let service = service_with(TestOptions { tls, without_agent: true, ..TestOptions::default() });
    let logged = service.logged.lock().unwrap().join("\n");
    assert!(logged.contains("lacks the issuer's certificate"), "{logged}");
    assert_eq!(service.access.certificate, None);
}

#[test]
fn an_expired_certificate_is_reported_at_start_and_to_clients() {
    let folder = tempfile::tempdir().unwrap();
    let mut expired = params("127.0.0.1");
    expired.not_after = date_time_ymd(2020, 1, 1);
    let tls = Some(self_signed(folder.path(), &expired));
    let service = service_with(TestOptions { tls, without_agent: true, ..TestOptions::default() });
    let logged = service.logged.lock().unwrap().join("\n");
    assert!(logged.contains("the certificate: it expired at"), "{logged}");
    let why = untrusted_reason(&service.access);
    assert!(why.contains("has expired: renew it"), "{why}");
}

#[test]
fn the_certificate_of_an_authority_is_refused_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    let tls = Some(self_signed(folder.path(), &authority("127.0.0.1")));
    let options = Options {
        retention: None,
        oidc: None,
        data_dir: folder.path().join("home"),
        database: None,
        address: "127.0.0.1:0".parse().unwrap(),
        tls,
        plain: false,
        images: "/images".into(),
        policy: Policy::default(),
        hosts: Vec::new(),
        log: Arc::new(|_: &str| {}),
    };
    let refused = serve(options, |_, _| panic!("it serves")).unwrap_err().to_string();
    assert!(refused.contains("cert.pem") && refused.contains("CA:FALSE"), "{refused}");
}

#[test]
fn a_service_without_tls_is_distinguished_from_an_unreachable_one() {
    let service = service_with(TestOptions { without_agent: true, ..TestOptions::default() });
    let url = service.access.url.replace("http://", "https://");
    let why = untrusted_reason(&Access { url, ..service.access.clone() });
    assert!(why.contains("does not speak TLS"), "{why}");
}

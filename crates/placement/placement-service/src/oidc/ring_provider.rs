//! Verifies signatures for `jsonwebtoken` with ring, which this program already uses for TLS. It neither signs nor
//! supports symmetric keys.
//!
//! Source: RFC 7518, section 3.

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind};
use ring::signature as ring_signature;
use ring::signature::{RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm};
use signature::Verifier;

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::UnsupportedAlgorithm.into()),
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes `jsonwebtoken` use ring in this process.
pub(super) fn install() {
    // Fails if a provider is already installed.
    let _ = PROVIDER.install_default();
}

/// How an algorithm is verified.
enum Scheme {
    Rsa(&'static ring_signature::RsaParameters),
    Other(AlgorithmFamily, &'static dyn VerificationAlgorithm),
}

fn scheme(algorithm: Algorithm) -> Option<Scheme> {
    Some(match algorithm {
        Algorithm::RS256 => Scheme::Rsa(&ring_signature::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => Scheme::Rsa(&ring_signature::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => Scheme::Rsa(&ring_signature::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => Scheme::Rsa(&ring_signature::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => Scheme::Rsa(&ring_signature::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => Scheme::Rsa(&ring_signature::RSA_PSS_2048_8192_SHA512),
        Algorithm::ES256 => Scheme::Other(AlgorithmFamily::Ec, &ring_signature::ECDSA_P256_SHA256_FIXED),
        Algorithm::ES384 => Scheme::Other(AlgorithmFamily::Ec, &ring_signature::ECDSA_P384_SHA384_FIXED),
        Algorithm::EdDSA => Scheme::Other(AlgorithmFamily::Ed, &ring_signature::ED25519),
        _ => return None,
    })
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    let scheme = scheme(*algorithm).ok_or(ErrorKind::UnsupportedAlgorithm)?;
    let family = match &scheme {
        Scheme::Rsa(_) => AlgorithmFamily::Rsa,
        Scheme::Other(family, _) => *family,
    };
    // A key is used only with algorithms of its type; otherwise, a public key could serve as the secret of a symmetric
    // algorithm.
    if key.family() != family {
        return Err(ErrorKind::InvalidKeyFormat.into());
    }
    Ok(Box::new(RingVerifier { algorithm: *algorithm, scheme, key: key.clone() }))
}

struct RingVerifier {
    algorithm: Algorithm,
    scheme: Scheme,
    key: DecodingKey,
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signed: &Vec<u8>) -> std::result::Result<(), signature::Error> {
        let verified = match (&self.scheme, self.key.kind()) {
            (Scheme::Rsa(parameters), DecodingKeyKind::RsaModulusExponent { n, e }) => {
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signed)
            }
            (Scheme::Rsa(parameters), DecodingKeyKind::SecretOrDer(key)) => {
                UnparsedPublicKey::new(*parameters, key).verify(message, signed)
            }
            (Scheme::Other(_, algorithm), DecodingKeyKind::SecretOrDer(key)) => {
                UnparsedPublicKey::new(*algorithm, key).verify(message, signed)
            }
            (Scheme::Other(..), DecodingKeyKind::RsaModulusExponent { .. }) => Err(ring::error::Unspecified),
        };
        verified.map_err(|_| signature::Error::new())
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

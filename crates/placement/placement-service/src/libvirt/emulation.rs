//! Guests that QEMU emulates without KVM.

use super::tree::Element;

/// Size of the translated code in MiB. QEMU's default is up to 1 GiB, which no placement reserves.
const TRANSLATED_CODE_MIB: u32 = 16;

/// Limits the memory for translated code, unless a template does. Only domains without KVM have any.
pub(super) fn limit_translated_code(xml: &mut Element) {
    if xml.get("type") != Some("qemu") || xml.at(&["features", "tcg", "tb-cache"]).is_some() {
        return;
    }
    let cache = Element::new("tb-cache").with("unit", "MiB").with_text(TRANSLATED_CODE_MIB);
    let tcg = Element::new("tcg").with_child(cache);
    match xml.children.iter_mut().find(|child| child.name == "features") {
        Some(features) => {
            features.children.retain(|child| child.name != "tcg");
            features.children.push(tcg);
        }
        None => xml.children.push(Element::new("features").with_child(tcg)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree;
    use super::*;

    fn limit(domain: &str) -> Option<String> {
        let mut xml = tree::parse(domain).unwrap();
        limit_translated_code(&mut xml);
        assert_eq!(xml.all("os").count(), 1);
        assert!(xml.all("features").count() <= 1);
        xml.at(&["features", "tcg", "tb-cache"]).map(|cache| cache.text.clone())
    }

    #[test]
    fn translated_code_has_a_limit() {
        let domain = |kind: &str, features: &str| format!("<domain type='{kind}'><os/>{features}</domain>");
        for features in ["", "<features><acpi/></features>", "<features><tcg/></features>"] {
            assert_eq!(limit(&domain("qemu", features)).as_deref(), Some("16"));
            assert_eq!(limit(&domain("kvm", features)), None);
        }
        let own = "<features><tcg><tb-cache unit='MiB'>64</tb-cache></tcg></features>";
        assert_eq!(limit(&domain("qemu", own)).as_deref(), Some("64"));
    }
}

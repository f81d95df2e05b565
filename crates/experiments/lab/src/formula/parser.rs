//! Reads the text of a formula.

use super::{Fold, Formula};

/// Maximum nesting of parentheses and functions.
const MAX_DEPTH: usize = 100;
/// Maximum number of tokens: names, numbers and operators.
const MAX_TOKENS: usize = 1000;

/// A word of a formula.
#[derive(Clone, Debug, PartialEq)]
enum Token {
    Number(f64),
    /// A name without quotes.
    Name(String),
    /// A text in quotes.
    Quoted(String),
    Sign(char),
}

impl Formula {
    /// Parses a formula.
    ///
    /// # Errors
    /// The error.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut parser = Parser { tokens: tokens(text)?, at: 0, depth: 0 };
        let formula = parser.sum()?;
        match parser.next() {
            None => Ok(formula),
            Some(token) => Err(unexpected(&token)),
        }
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let end = |is_part: &dyn Fn(char) -> bool| rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let length = if first.is_ascii_digit() {
            let length = number_length(rest);
            let number =
                rest[..length].parse().map_err(|_| format!("`{}` is not a number", &rest[..length]))?;
            tokens.push(Token::Number(number));
            length
        } else if first.is_ascii_alphabetic() || first == '_' {
            let length = end(&|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.'));
            tokens.push(Token::Name(rest[..length].into()));
            length
        } else if first == '\'' {
            let closing = rest[1..].find('\'').ok_or("a `'` is missing at the end")?;
            tokens.push(Token::Quoted(rest[1..=closing].into()));
            closing + 2
        } else if "+-*/(),=".contains(first) {
            tokens.push(Token::Sign(first));
            1
        } else {
            return Err(format!("`{first}` is not expected here"));
        };
        if tokens.len() > MAX_TOKENS {
            return Err(format!("the formula is too long: at most {MAX_TOKENS} names, numbers and signs"));
        }
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

/// The length of the number at the start of `text`, with an exponent such as `e-3`.
fn number_length(text: &str) -> usize {
    let digits = |from: usize| {
        text[from..].find(|c: char| !c.is_ascii_digit() && c != '.').map_or(text.len(), |end| from + end)
    };
    let end = digits(0);
    let Some(exponent) = text[end..].strip_prefix(['e', 'E']) else { return end };
    let sign = usize::from(exponent.starts_with(['+', '-']));
    let from = end + 1 + sign;
    if text[from..].starts_with(|c: char| c.is_ascii_digit()) { digits(from) } else { end }
}

fn unexpected(token: &Token) -> String {
    let text = match token {
        Token::Number(number) => number.to_string(),
        Token::Name(name) => name.clone(),
        Token::Quoted(text) => format!("'{text}'"),
        Token::Sign(sign) => sign.to_string(),
    };
    format!("`{text}` is not expected here")
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
}

impl Parser {
    fn next(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.at).cloned();
        self.at += 1;
        token
    }

    /// Consumes the next operator if it is one of `signs`.
    fn consume(&mut self, signs: &str) -> Option<char> {
        match self.tokens.get(self.at) {
            Some(Token::Sign(sign)) if signs.contains(*sign) => {
                self.at += 1;
                Some(*sign)
            }
            _ => None,
        }
    }

    fn expect(&mut self, sign: char) -> Result<(), String> {
        if self.consume(&sign.to_string()).is_some() {
            return Ok(());
        }
        match self.next() {
            Some(token) => Err(unexpected(&token)),
            None => Err(format!("`{sign}` is missing at the end")),
        }
    }

    fn sum(&mut self) -> Result<Formula, String> {
        self.chain("+-", Self::product)
    }

    fn product(&mut self) -> Result<Formula, String> {
        self.chain("*/", Self::value)
    }

    fn chain(
        &mut self,
        signs: &str,
        part: fn(&mut Self) -> Result<Formula, String>,
    ) -> Result<Formula, String> {
        let mut left = part(self)?;
        while let Some(sign) = self.consume(signs) {
            left = Formula::Binary(sign, Box::new(left), Box::new(part(self)?));
        }
        Ok(left)
    }

    fn value(&mut self) -> Result<Formula, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("the formula is too deep: at most {MAX_DEPTH} levels"));
        }
        let value = match self.next() {
            Some(Token::Number(number)) => Formula::Number(number),
            Some(Token::Quoted(name)) => Formula::Metric(name),
            Some(Token::Sign('-')) => Formula::Negative(Box::new(self.value()?)),
            Some(Token::Sign('(')) => {
                let inner = self.sum()?;
                self.expect(')')?;
                inner
            }
            Some(Token::Name(name)) if self.consume("(").is_some() => self.function(&name)?,
            Some(Token::Name(name)) => Formula::Metric(name),
            Some(token) => return Err(unexpected(&token)),
            None => return Err("the formula ends where a value should be".into()),
        };
        self.depth -= 1;
        Ok(value)
    }

    /// A function after its opening parenthesis.
    fn function(&mut self, name: &str) -> Result<Formula, String> {
        let (fold, over) = match name {
            "sum" => (Fold::Sum, false),
            "mean" => (Fold::Mean, false),
            "least" => (Fold::Least, false),
            "most" => (Fold::Most, false),
            "mean_over" => (Fold::Mean, true),
            "least_over" => (Fold::Least, true),
            "most_over" => (Fold::Most, true),
            "at" => return self.at(),
            _ => {
                let known = "sum, mean, least, most, at, mean_over, least_over, most_over";
                return Err(format!("there is no function `{name}`; the functions are {known}"));
            }
        };
        if !over {
            let pattern = match self.next() {
                Some(Token::Quoted(pattern) | Token::Name(pattern)) => pattern,
                _ => return Err(format!("`{name}` needs a pattern: {name}('core*.l2.misses')")),
            };
            self.expect(')')?;
            return Ok(Formula::Metrics(fold, pattern));
        }
        let inner = self.sum()?;
        let mut parameters = Vec::new();
        while self.consume(",").is_some() {
            parameters.push(self.word(name)?);
        }
        self.expect(')')?;
        if parameters.is_empty() {
            return Err(format!("`{name}` needs a parameter: {name}(time, size)"));
        }
        Ok(Formula::Over(fold, Box::new(inner), parameters))
    }

    fn at(&mut self) -> Result<Formula, String> {
        let inner = self.sum()?;
        let mut settings = Vec::new();
        while self.consume(",").is_some() {
            let parameter = self.word("at")?;
            self.expect('=')?;
            settings.push((parameter, self.word("at")?));
        }
        self.expect(')')?;
        if settings.is_empty() {
            return Err("`at` needs a parameter with its value: at(time, tree = 'cow')".into());
        }
        Ok(Formula::At(Box::new(inner), settings))
    }

    /// A parameter or a value.
    fn word(&mut self, function: &str) -> Result<String, String> {
        match self.next() {
            Some(Token::Name(text) | Token::Quoted(text)) => Ok(text),
            Some(Token::Number(number)) => Ok(number.to_string()),
            Some(token) => Err(unexpected(&token)),
            None => Err(format!("`)` of `{function}` is missing at the end")),
        }
    }
}

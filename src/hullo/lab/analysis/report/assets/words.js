// The functions in formulas of bases, on numbers; see hullo.formulas.FUNCTIONS.
const {abs, asinh, atan, cos, exp, expm1, log1p, sin, sqrt, tanh} = Math;
const clamp = (x, low, high) => Math.min(Math.max(x, low), high);
const minimum = (x, most) => Math.min(x, most);
const positive_part = (x) => Math.max(x, 0);
const sigmoid = (x) => 1 / (1 + exp(-x));
const square = (x) => x * x;
const step = (x) => (x > 0 ? 1 : 0);
const where = (condition, a, b) => (condition ? a : b);
const normal_pdf = (x) => exp(-0.5 * x * x) / sqrt(2 * Math.PI);
const normal_tail = (x) => 0.5 * erfc(sqrt(0.5) * abs(x));
const erf = (x) => (abs(x) < 2.5 ? series(x) : Math.sign(x) * (1 - erfc(abs(x))));
const erfc = (x) => (x < 2.5 ? 1 - series(x) : fraction(x)); // for x >= 0

/** erf(x) = 2 / sqrt(pi) * exp(-x^2) * sum over n of 2^n x^(2n+1) / (1 * 3 * ... * (2n+1)). */
function series(x) {
  let sum = 0;
  for (let term = x, n = 1; abs(term) > 1e-18; n += 1) {
    sum += term;
    term *= (2 * x * x) / (2 * n + 1);
  }
  return (2 / sqrt(Math.PI)) * exp(-x * x) * sum;
}

/** erfc(x) = exp(-x^2) / sqrt(pi) / (x + (1/2) / (x + (2/2) / (x + (3/2) / ...))). */
function fraction(x) {
  let denominator = x;
  for (let k = 40; k > 0; k -= 1) denominator = x + k / 2 / denominator;
  return exp(-x * x) / sqrt(Math.PI) / denominator;
}

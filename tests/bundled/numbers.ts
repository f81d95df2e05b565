export const sum = (numbers: number[]) => numbers.reduce((left, right) => left + right, 0);

export function primes(below: number): number[] {
    const found: number[] = [];
    outer: for (let n = 2; n < below; n++) {
        for (const prime of found) {
            if (n % prime === 0) continue outer;
        }
        found.push(n);
    }
    return found;
}

export class Unused {
    static #count = 0;
    get count() {
        return Unused.#count++;
    }
}

/* Rank guides before results and the reference, which mention every word. */
"use strict";

const LOOKED_UP = /^(api|architecture|benchmarks|changelog|contributing|drop-in|models|notes|studies|trials|tutorial|results\/)/;

var Scorer = {
  score: ([page, , , , score]) => score - (LOOKED_UP.test(page) ? 4 : 0),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

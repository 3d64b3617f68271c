(() => {
  const tip = document.getElementById("tip");
  document.addEventListener("pointermove", (event) => {
    const mark = event.target.closest("[data-tip]");
    tip.classList.toggle("shown", Boolean(mark));
    if (!mark) return;
    tip.textContent = mark.dataset.tip;
    const width = tip.offsetWidth, beside = event.clientX + 14 + width > innerWidth ? -width - 14 : 14;
    tip.style.transform = `translate(${event.clientX + beside}px, ${event.clientY + 14}px)`;
    tip.style.left = tip.style.top = "0";
  });
})();
